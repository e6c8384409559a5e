package serviceaccount

import (
	"cmp"
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
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/util/keyutil"

	"github.com/shardplane/shardplane/pkg/request"
)

// LegacyIssuer is the issuer of tokens in Secrets.
const LegacyIssuer = "kubernetes/serviceaccount"

// boundClaims are the private claims of requested tokens.
type boundClaims struct {
	Kubernetes kubernetesClaim `json:"kubernetes.io"`
}

type kubernetesClaim struct {
	ClusterName    logicalcluster.Name `json:"clusterName,omitempty"`
	Namespace      string              `json:"namespace,omitempty"`
	ServiceAccount reference           `json:"serviceaccount"`
	Secret         *reference          `json:"secret,omitempty"`
	// Pod and Node are not supported.
	Pod  *reference `json:"pod,omitempty"`
	Node *reference `json:"node,omitempty"`
}

type reference struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// legacyClaims are the private claims of tokens in Secrets.
type legacyClaims struct {
	ClusterName        logicalcluster.Name `json:"kubernetes.io/serviceaccount/clusterName"`
	Namespace          string              `json:"kubernetes.io/serviceaccount/namespace"`
	SecretName         string              `json:"kubernetes.io/serviceaccount/secret.name"`
	ServiceAccountName string              `json:"kubernetes.io/serviceaccount/service-account.name"`
	ServiceAccountUID  string              `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// anyClaims are the claims that are used before the token is verified.
type anyClaims struct {
	Issuer     string `json:"iss"`
	Kubernetes struct {
		ClusterName logicalcluster.Name `json:"clusterName"`
	} `json:"kubernetes.io"`
	LegacyClusterName logicalcluster.Name `json:"kubernetes.io/serviceaccount/clusterName"`
}

// maxTokenSize limits the tokens that are parsed.
//
//reference:limit request | token of a service account: size | 401
const maxTokenSize = 16 << 10

// unverified returns the claims of a token without verifying it.
func unverified(token string) (anyClaims, *jwt.JSONWebToken, error) {
	var claims anyClaims
	if len(token) > maxTokenSize {
		return claims, nil, errors.New("the token is too long")
	}
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return claims, nil, err
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return claims, nil, err
	}
	return claims, parsed, nil
}

// ClaimedCluster returns the unverified logical cluster of a token, which must be used for routing only.
func ClaimedCluster(token string) (logicalcluster.Name, bool) {
	claims, _, err := unverified(token)
	if err != nil {
		return "", false
	}
	return claims.cluster()
}

// cluster returns the logical cluster that either of two claims names. A token whose claims differ has none.
func (c *anyClaims) cluster() (logicalcluster.Name, bool) {
	name := cmp.Or(c.Kubernetes.ClusterName, c.LegacyClusterName)
	several := c.LegacyClusterName != "" && c.LegacyClusterName != name
	return name, !several && request.ValidClusterName(name)
}

// Issuer issues tokens. It is safe for concurrent use.
type Issuer struct {
	// url is the iss claim of requested tokens.
	url, file string

	signer atomic.Pointer[jose.Signer]
}

// NewIssuer returns an issuer that signs with the private key of a PEM file.
func NewIssuer(issuerURL, signingKeyFile string) (*Issuer, error) {
	i := &Issuer{url: issuerURL, file: signingKeyFile}
	err := i.Reload()
	return i, err
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

// Issue returns a token for an account, bound to a Secret unless that is nil, and the ID of the token.
func (i *Issuer) Issue(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret, audiences []string, lifetime time.Duration) (token, id string, err error) {
	if cluster == "" {
		return "", "", errors.New("the logical cluster of the account is required")
	}
	now, id := time.Now(), uuid.NewString()
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
		return nil, fmt.Errorf("%s: the key cannot sign", file)
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
