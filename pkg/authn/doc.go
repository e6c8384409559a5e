// Package authn decides who a request is from. Shards, the front-proxy and the
// cache server share it, so that all decide alike.
//
//	New(Options) ─► Authentication.Authenticator
//	                  certificates   of users, and of a front-proxy that names them
//	                  tokens         development, serviceaccount, providers (OIDC), webhook
//	                                 issuers, of tenants, in their workspaces
//	                  nobody         health probes only
//	Run(ctx)     ─► files that change are read again
//
// What the front-proxy takes off requests and users is here, too: GroupFilter
// and, for requests that name no logical cluster, WithTokenCluster.
package authn
