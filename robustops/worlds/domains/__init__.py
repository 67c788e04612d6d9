"""One folder a domain; each exports DOMAIN, a subclass of `robustops.worlds.domain.Domain`."""
