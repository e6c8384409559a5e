// Package serviceaccount makes and checks the tokens of service accounts. A
// token names the logical cluster of its account, and it is valid for as long
// as the objects that it is bound to exist in that logical cluster.
//
//	Issuer ─► token ─► Authenticator: signature, issuer, time, audience
//	                        └► Accounts: do account and secret still exist?
//
// The claims are those that kcp makes: Kubernetes' own, and clusterName.
package serviceaccount
