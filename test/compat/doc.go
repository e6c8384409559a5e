// Package compat holds the servers against kcp's own clients, in the versions and with the
// Kubernetes release that these are made for. It imports nothing of ours, and runs the program.
package compat
