// Package library tests the public packages, pkg/client and pkg/reconcile, as their users see them: the exported names,
// the examples, the linked packages, and kcp as a server.
package library
