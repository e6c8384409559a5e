// Package definitions contains the definitions of custom resources: CustomResourceDefinitions of all logical
// clusters, in storage and in an index, and definitions of other sources. Names of a CustomResourceDefinition
// are accepted in the same write.
//
//	Sources ─► System, the same in every logical cluster
//	    │  └─► others: APIs from other sources
//	    └────► Index ◄─ watches ─ Storage ◄─ names, reserved during a write
//	             │
//	             ▼
//	          Schema: interned in a Table by the hash of spec and accepted names
package definitions
