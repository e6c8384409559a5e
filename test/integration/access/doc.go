// Package access contains integration tests of authentication, authorization, workspaces, and their initial content, in clusters
// that run in the test process.
package access
