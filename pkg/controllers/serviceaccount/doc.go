// Package serviceaccount manages the service accounts of every logical cluster of a shard.
//
//	Name        creates the account "default" in each namespace
//	TokensName  writes the token of the account into secrets of type
//	            kubernetes.io/service-account-token, and deletes them with the account
//
// Requested tokens need no controller: validation checks the objects that they are bound to.
package serviceaccount
