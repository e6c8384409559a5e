// Package identity says who a user is in a logical cluster. The same user may
// be somebody in one, out of scope in another, and somebody else as well.
//
//	user in scope                     itself
//	user out of scope                 system:anonymous in system:authenticated
//	                                  and in system:cluster:<where it is from>
//	service account of elsewhere      as out of scope, and
//	                                  system:kcp:serviceaccount:<cluster>:<namespace>:<name>
//	user with a warrant               and whom the warrant names, by the same rules
//
// RBAC and the other rules ask for all identities of a user and allow what one
// of them may do.
package identity
