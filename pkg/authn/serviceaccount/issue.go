package serviceaccount

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Issuer issues tokens. It is safe for concurrent use.
type Issuer struct {
	// url is the iss claim of requested tokens.
	url  string
	file string
	now  func() time.Time

	signer atomic.Pointer[jose.Signer]
}

// NewIssuer returns an issuer that signs with the private key of a PEM file.
func NewIssuer(issuerURL, signingKeyFile string) (*Issuer, error) {
	i := &Issuer{url: issuerURL, file: signingKeyFile, now: time.Now}
	if err := i.Reload(); err != nil {
		return nil, err
	}
	return i, nil
}

// Reload reads the signing key again. If that fails, the old key remains in use.
func (i *Issuer) Reload() error {
	signer, err := loadSigner(i.file)
	if err != nil {
		return err
	}
	i.signer.Store(&signer)
	return nil
}

// Issue issues a token for an account, bound to a Secret unless that is nil. It also returns the ID of the
// token.
func (i *Issuer) Issue(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret, audiences []string, lifetime time.Duration) (token, id string, err error) {
	if cluster == "" {
		return "", "", errors.New("the logical cluster of the account is required")
	}
	now, id := i.now(), uuid.NewString()
	private := boundClaims{Kubernetes: kubernetesClaim{
		ClusterName:    cluster,
		Namespace:      account.Namespace,
		ServiceAccount: reference{Name: account.Name, UID: string(account.UID)},
	}}
	if secret != nil {
		private.Kubernetes.Secret = &reference{Name: secret.Name, UID: string(secret.UID)}
	}
	token, err = i.sign(&jwt.Claims{
		Issuer:    i.url,
		Subject:   apiserverserviceaccount.MakeUsername(account.Namespace, account.Name),
		Audience:  audiences,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(lifetime)),
		ID:        id,
	}, &private)
	return token, id, err
}

// IssueLegacy issues a token without expiration that is valid while the Secret contains it.
func (i *Issuer) IssueLegacy(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	if cluster == "" {
		return "", errors.New("the logical cluster of the account is required")
	}
	return i.sign(&jwt.Claims{
		Issuer:  LegacyIssuer,
		Subject: apiserverserviceaccount.MakeUsername(account.Namespace, account.Name),
	}, &legacyClaims{
		ClusterName:        cluster,
		Namespace:          account.Namespace,
		SecretName:         secret.Name,
		ServiceAccountName: account.Name,
		ServiceAccountUID:  string(account.UID),
	})
}

func (i *Issuer) sign(claims ...any) (string, error) {
	builder := jwt.Signed(*i.signer.Load())
	for _, c := range claims {
		builder = builder.Claims(c)
	}
	token, err := builder.CompactSerialize()
	if err != nil {
		return "", fmt.Errorf("signing a service account token: %w", err)
	}
	return token, nil
}
