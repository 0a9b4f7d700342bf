"""Rewriting of captured programs: functionalisation and decomposition."""
