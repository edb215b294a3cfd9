"""The first hour of a newcomer: forty judgments, a round, and its decision."""
