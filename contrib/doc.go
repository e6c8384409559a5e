// Package contrib contains files for operators: a Prometheus configuration and a Grafana dashboard for the development cluster, and
// controllers that can be copied, in examples. Its Go code consists of tests. They check that the metrics and labels in these files are
// served, and run several replicas of each example while some of them are killed.
package contrib
