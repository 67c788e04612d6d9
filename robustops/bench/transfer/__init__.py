"""Does what was learned on the campaign's arithmetic runs hold elsewhere: another domain, another trainer?"""
