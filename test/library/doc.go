// Package library tests what is public, pkg/client and pkg/reconcile, as a product of its own: what
// it takes to use it, and that what is documented works. Package greeter is the controller of the
// documentation.
package library
