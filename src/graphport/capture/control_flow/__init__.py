"""Control flow and higher-order operators: functions that become subgraphs."""
