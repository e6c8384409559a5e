// Package serviceaccount looks after the service accounts of every logical
// cluster of a shard.
//
//	Name        every namespace has an account named default
//	TokensName  secrets of type kubernetes.io/service-account-token hold the
//	            token of their account, and go when it goes
//
// Tokens that are requested need no controller: they are checked against the
// objects that they are bound to.
package serviceaccount
