// Package resourcequota keeps the status of ResourceQuotas: what they allow,
// and how much of it is used.
//
// Admission adds to what is used before each write. This controller counts:
// when a quota is new or changed, when something is deleted, and after writes
// that were admitted and came to nothing.
//
//	quota ─► namespace of a logical cluster ─► which resources do its quotas count?
//	              ├─ watch their metadata in the logical cluster, as long as there is a quota:
//	              │  each resource once, for all namespaces
//	              └─ used := how many there are
//	                   ├─ more than the status says: write it at once
//	                   └─ fewer: some may be admitted and not stored yet. Look a second
//	                      later, and take off what was used then and is not there
//
// A quota may limit its logical cluster as a whole. Then all namespaces are watched together.
package resourcequota
