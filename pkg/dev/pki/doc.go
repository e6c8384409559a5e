// Package pki keeps a directory of certificate authorities and certificates
// for a development cluster: it makes what is missing, takes again what is
// there, renews what is about to expire, and refuses what is corrupt.
//
// A certificate lives in <name>.crt and its key in <name>.key, both PEM. The
// key is written first: a run that is interrupted in between leaves a key
// without a certificate, which the next run completes. A renewal keeps the
// key, so that an interrupted one never leaves a pair that does not match, and
// so that what a renewed authority has signed stays valid.
package pki
