// Package namespace empties namespaces that are being deleted, in every logical
// cluster of a shard.
//
//	kubectl delete namespace x
//	  └► phase Terminating, spec.finalizers [kubernetes]
//	       └► this controller: delete every object of every namespaced resource,
//	          built-in or custom, as discovery of the logical cluster names them
//	            ├► something is left (it has finalizers): say so in conditions, come back
//	            └► nothing is left: remove the finalizer; the server deletes the namespace
package namespace
