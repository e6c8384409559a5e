// Package namespace deletes the content of namespaces that are being deleted, in every logical cluster of a shard.
//
//	kubectl delete namespace x
//	  └► phase Terminating, spec.finalizers [kubernetes]
//	       └► this controller: delete all objects of all namespaced resources that
//	          discovery of the logical cluster returns
//	            ├► objects with finalizers remain: report them in conditions, retry
//	            └► no objects remain: remove the finalizer; the server deletes the namespace
package namespace
