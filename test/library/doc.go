// Package library tests the public packages pkg/client and pkg/reconcile as a separate product: its dependencies, its compatibility, and
// the documentation. Package greeter is the controller in the documentation.
package library
