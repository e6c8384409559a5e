// Package contrib holds what operators take away: a Prometheus scrape
// configuration and a Grafana dashboard for the development cluster, and
// controllers to copy, in examples. Its own Go code is tests only: they hold
// every name and label in those files against what the running servers serve,
// and run several replicas of each example while some of them are killed.
package contrib
