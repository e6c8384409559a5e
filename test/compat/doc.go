// Package compat tests the servers with kcp's own clients, with the versions and the Kubernetes
// release that these support. It does not import packages of this repository, and runs the program.
package compat
