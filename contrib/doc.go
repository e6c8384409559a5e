// Package contrib holds what operators take away: a Prometheus scrape
// configuration and a Grafana dashboard for the development cluster. Its Go
// code is tests only: they hold every name and label in those files against
// what the running servers serve.
package contrib
