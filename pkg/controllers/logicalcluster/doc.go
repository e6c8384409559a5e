// Package logicalcluster manages the lifecycle of the logical clusters of a shard. Each of them is described by its LogicalCluster
// object.
//
//	created ─► Scheduling ─► Initializing ─► Ready ◄─► Inactive
//	             │ namespace    │ until          (annotation core.kcp.io/inactive)
//	             │ "default"    │ status.initializers
//	             │ exists       │ is empty; package defaults handles the one for the default
//	             │              │ bindings of the type
//
//	deleted ─► Terminating ─► Deleting ─► removed
//	             │ until         │ workspaces, then all other content, then
//	             │ status.       │ namespaces, then CustomResourceDefinitions;
//	             │ terminators   │ each stage begins when the previous one is empty,
//	             │ is empty      │ and everything is checked again at the end
//
// Every step can be repeated, because the complete state is stored in the object.
package logicalcluster
