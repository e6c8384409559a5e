// Package serviceaccount issues and authenticates tokens of service accounts. A token names the logical
// cluster of its account, and is valid while the objects that it is bound to exist there.
//
//	Issuer ─► token ─► Authenticator: signature, issuer, time, audience
//	                        └► Accounts: do account and secret still exist?
//
// The claims are those of kcp: the claims of Kubernetes and clusterName.
package serviceaccount
