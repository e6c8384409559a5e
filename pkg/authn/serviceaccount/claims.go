package serviceaccount

import (
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	"gopkg.in/go-jose/go-jose.v2/jwt"

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

var errTooLong = errors.New("the token is too long")

// unverified returns the claims of a token without verifying it.
func unverified(token string) (anyClaims, *jwt.JSONWebToken, error) {
	var claims anyClaims
	if len(token) > maxTokenSize {
		return claims, nil, errTooLong
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

// ClaimedCluster returns the logical cluster that a token claims. It is not verified and must be used only to
// route the request.
func ClaimedCluster(token string) (logicalcluster.Name, bool) {
	claims, _, err := unverified(token)
	if err != nil {
		return "", false
	}
	return claims.cluster()
}

// cluster returns the logical cluster that a token claims, in either of two claims. A token whose claims
// differ has none.
func (c *anyClaims) cluster() (logicalcluster.Name, bool) {
	name := c.Kubernetes.ClusterName
	if name == "" {
		name = c.LegacyClusterName
	}
	several := c.LegacyClusterName != "" && c.LegacyClusterName != name
	return name, !several && request.ValidClusterName(name)
}
