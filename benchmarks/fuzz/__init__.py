"""Damaged and hostile inputs for every file and text that a person gives to medic."""
