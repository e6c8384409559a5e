// Package contrib holds what operators take away: a Prometheus scrape
// configuration and a Grafana dashboard for the development cluster. Its Go
// code reads which metrics they use, so that a test can hold every name and
// label in them against what the running servers serve.
package contrib
