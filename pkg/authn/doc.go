// Package authn authenticates requests. Shards, the front-proxy and the cache server share it.
//
//	New(Options) ─► Authentication.Authenticator
//	                  certificates   of users, and of a front-proxy that names the user
//	                  tokens         development, serviceaccount, providers (OIDC), webhook
//	                                 issuers, of tenants, in their workspaces
//	                  anonymous      health probes only
//	Run(ctx)     ─► reloads changed files
//
// GroupFilter removes groups of users, and WithTokenCluster sends requests without a logical cluster to that
// of their token.
package authn
