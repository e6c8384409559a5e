// Package centretest is part of a fixture: what it writes is for tests.
package centretest

const key = "example.kcp.io/key"
