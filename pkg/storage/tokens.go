package storage

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Continue tokens are upstream's, sealed: followed by a digest of the token and
// of what was listed. A token that was changed, or that is used for another
// logical cluster, resource or namespace than it was issued for, is refused.
//
// The digest is no secret and need not be one: what keeps a forged token inside
// its logical cluster is that upstream's token is relative to the key prefix of
// the request that shows it. Without a secret, a token works on each replica
// and after a restart.

const (
	sealSeparator = "."
	sealLength    = 12
)

func seal(scope, token string) string {
	sum := sha256.New()
	sum.Write([]byte(scope))
	sum.Write([]byte{0})
	sum.Write([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:sealLength])
}

// sealToken makes upstream's token one for the scope.
func sealToken(scope, token string) string {
	if token == "" {
		return ""
	}
	return token + sealSeparator + seal(scope, token)
}

// openToken returns upstream's token, or the error that clients get.
func openToken(scope, sealed string) (string, error) {
	if sealed == "" {
		return "", nil
	}
	token, got, found := strings.Cut(sealed, sealSeparator)
	if !found || token == "" {
		return "", apierrors.NewBadRequest("invalid continue token: not a token of this server")
	}
	if got != seal(scope, token) {
		return "", apierrors.NewBadRequest("invalid continue token: it was changed, or issued for another request")
	}
	return token, nil
}
