// Package definitions knows which custom resources are served where: the
// CustomResourceDefinitions of all logical clusters, in storage and in an index,
// whose names are accepted in the write that asks for them, and whatever other
// sources of definitions there are.
//
//	Sources ─► System, the same in every logical cluster
//	    │  └─► others: APIs from elsewhere
//	    └────► Index ◄─ follows ─ Storage ◄─ names, reserved while they are written
//	             │
//	             ▼
//	          Schema: interned in a Table by hash of spec and accepted names
package definitions
