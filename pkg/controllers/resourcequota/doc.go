// Package resourcequota updates the status of ResourceQuotas: limits and usage.
//
// Admission adds to the usage before each write. This controller counts the objects when a quota changes, when objects are
// deleted, and after admitted writes that failed.
//
//	quota ─► namespace of a logical cluster ─► resources that its quotas count
//	              ├─ watch their metadata in the logical cluster as long as there is a
//	              │  quota: each resource once for all namespaces
//	              └─ used := number of objects
//	                   ├─ more than the status: write it immediately
//	                   └─ fewer: admitted writes may not be stored yet. Count again after a
//	                      second and subtract the difference to the usage at the first count
//
// A quota may limit a logical cluster. Then the objects of all namespaces are counted.
package resourcequota
