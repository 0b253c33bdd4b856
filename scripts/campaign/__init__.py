"""Plans a campaign: many jobs that ask a farm of servers, simulated event by event."""
