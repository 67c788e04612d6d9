"""Task catalog: generation, splits, tool configurations, EnterpriseOps-Gym files."""
