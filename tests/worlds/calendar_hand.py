"""A calendar world made by hand, as tables."""

#: A world small enough to work results out by hand.
HAND = {
    "users": [
        {"email": "ann@x.example", "full_name": "Ann Ash", "department": "Legal", "time_zone": "Asia/Tokyo"},
        {
            "email": "bob@x.example",
            "full_name": "Bob Birch",
            "department": "Sales",
            "manager_email": "ann@x.example",
            "time_zone": "Asia/Tokyo",
        },
    ],
    "calendars": [
        {
            "calendar_id": calendar,
            "name": name,
            "owner_email": "ann@x.example",
            "time_zone": "Asia/Tokyo",
            "is_primary": primary,
            "created_at": "2025-12-01 08:00:00",
            "updated_at": "2025-12-01 08:00:00",
        }
        for calendar, name, primary in (("cal_1", "Ann Ash", 1), ("cal_2", "Legal", 0), ("cal_3", "Press", 0))
    ],
    "colors": [{"color_id": "clr_5", "color_name": "Sage"}],
    "calendar_list": [{"email": "ann@x.example", "calendar_id": "cal_2", "color_id": None, "hidden": 0}],
    "acl_rules": [{"rule_id": "acl_1", "calendar_id": "cal_2", "email": "ann@x.example", "role": "owner"}],
    "rooms": [{"room_id": "room_7", "room_name": "Oak", "building": "North", "capacity": 4}],
    "events": [
        {
            "event_id": event,
            "calendar_id": "cal_2",
            "title": title,
            "start_time": start,
            "end_time": end,
            "room_id": room,
            "status": status,
            "visibility": "default",
            "organizer_email": "ann@x.example",
            "created_at": "2025-12-01 08:00:00",
            "updated_at": "2025-12-01 08:00:00",
        }
        for event, title, start, end, room, status in (
            ("evt_1", "Audit talk", "2026-02-02 10:00", "2026-02-02 11:30", "room_7", "confirmed"),
            ("evt_2", "Risk check", "2026-02-02 09:00", "2026-02-02 09:30", None, "confirmed"),
            ("evt_3", "Old demo", "2026-02-03 09:00", "2026-02-03 09:30", None, "cancelled"),
        )
    ],
    "attendees": [{"event_id": "evt_1", "email": "bob@x.example", "response_status": "accepted"}],
    "reminders": [{"reminder_id": "rem_1", "event_id": "evt_1", "method": "popup", "minutes_before": 10}],
    "notifications": [],
}
