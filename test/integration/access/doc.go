// Package access contains integration tests of authentication, authorization, workspaces, and what every workspace contains,
// in clusters that run in the test process.
package access
