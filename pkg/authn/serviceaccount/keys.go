package serviceaccount

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	jose "gopkg.in/go-jose/go-jose.v2"
	"k8s.io/client-go/util/keyutil"
)

const minRSABits = 2048

type verificationKey struct {
	id        string
	algorithm jose.SignatureAlgorithm
	public    any
}

// loadVerificationKeys reads the public keys in PEM files, also those of private keys.
func loadVerificationKeys(files []string) ([]verificationKey, error) {
	var keys []verificationKey
	for _, file := range files {
		found, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the keys of service account tokens: %w", err)
		}
		for _, public := range found {
			key, err := newVerificationKey(public)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func newVerificationKey(public any) (verificationKey, error) {
	algorithm, err := algorithmOf(public)
	if err != nil {
		return verificationKey{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return verificationKey{}, err
	}
	sum := sha256.Sum256(der)
	return verificationKey{id: base64.RawURLEncoding.EncodeToString(sum[:]), algorithm: algorithm, public: public}, nil
}

// algorithmOf returns the only algorithm for a key, because a token must not choose how it is verified.
func algorithmOf(public any) (jose.SignatureAlgorithm, error) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSABits {
			return "", fmt.Errorf("the RSA key has %d bits: use at least %d", key.N.BitLen(), minRSABits)
		}
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
		return "", fmt.Errorf("the curve %s is not supported: use P-256, P-384 or P-521", key.Curve.Params().Name)
	default:
		return "", fmt.Errorf("keys of type %T are not supported: use RSA or ECDSA", public)
	}
}

func loadSigner(file string) (jose.Signer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the signing key of service account tokens: %w", err)
	}
	private, err := keyutil.ParsePrivateKeyPEM(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	signer, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: %w", file, errors.New("the key cannot sign"))
	}
	key, err := newVerificationKey(signer.Public())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return jose.NewSigner(jose.SigningKey{
		Algorithm: key.algorithm,
		Key:       jose.JSONWebKey{Algorithm: string(key.algorithm), Key: private, KeyID: key.id, Use: "sig"},
	}, nil)
}
