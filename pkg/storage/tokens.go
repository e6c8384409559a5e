package storage

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Continue tokens are upstream's tokens with a seal: a digest of the token and its scope. A token that was
// changed, or is used for another logical cluster, resource or namespace, is rejected.
//
// The digest needs no secret: a forged token cannot leave its logical cluster, because upstream's token
// is relative to the key prefix of the request. Therefore a token works on each replica and after a
// restart.

const (
	sealSeparator = "."
	sealLength    = 12
)

func seal(scope, token string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + token))
	return base64.RawURLEncoding.EncodeToString(sum[:sealLength])
}

func sealToken(scope, token string) string {
	if token == "" {
		return ""
	}
	return token + sealSeparator + seal(scope, token)
}

// openToken verifies the seal and returns upstream's token.
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
