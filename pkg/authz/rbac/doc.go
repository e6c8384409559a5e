// Package rbac decides by roles and bindings, in each logical cluster by its
// own and in all of them by those of the system's logical cluster.
//
//	informers of roles and bindings, wildcard
//	        │ events
//	        ▼
//	     Index ── per logical cluster: bindings by subject and namespace, roles by name
//	        ▲
//	        │ look-ups, no lists
//	     Authorizer ── Authorize, RulesFor (for reviews), RulesOf and RulesIn (for who writes roles)
//	        ▲
//	        │ waits a moment for
//	     freshness ── what was written here and has not arrived in the Index yet
//
// The cost of a decision depends on the bindings of the user in the one logical
// cluster, not on how many logical clusters there are.
package rbac
