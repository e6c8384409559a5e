// Package logicalcluster leads the life of the logical clusters of a shard, each
// of which is described by the one LogicalCluster object in it.
//
//	created ─► Scheduling ─► Initializing ─► Ready ◄─► Inactive
//	             │ namespace    │ until          (annotation core.kcp.io/inactive)
//	             │ "default"    │ status.initializers
//	             │ exists       │ is empty; defaults fulfils one of them, the bindings
//	             │              │ of APIs that the type says
//
//	deleted ─► Terminating ─► Deleting ─► gone
//	             │ until         │ workspaces, then all other content, then
//	             │ status.       │ namespaces, then CustomResourceDefinitions;
//	             │ terminators   │ each stage begins when nothing is left of the
//	             │ is empty      │ one before, and all is looked at again at the end
//
// Every step can be repeated: nothing is remembered but what the object says,
// so a shard that stops in the middle goes on where it stood.
package logicalcluster
