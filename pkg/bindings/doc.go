// Package bindings indexes the APIBindings of a shard by the APIs that they bind, as recorded
// in their status. The index is a source of custom resources (definitions.Source), and is used
// by controllers and by authorization.
//
//	APIBindings ─► Index: one record per binding; bindings with equal content share it
//	                 │
//	                 ├─► the served resources: two look-ups by logical cluster and resource
//	                 ├─► wildcard requests by identity, and for metadata of all identities
//	                 └─► the export of a resource, and so its maximal permission policy
//	BoundSchemas ─► the schemas that are served, each decoded once: copies on this shard, so
//	                that a bound API does not depend on other servers
//
// There is no goroutine per binding or logical cluster, and no decoded object is kept.
// docs/bindings.md describes the kinds, docs/development/bindings.md the mechanisms.
package bindings
