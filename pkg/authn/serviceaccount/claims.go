package serviceaccount

import (
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/shardplane/shardplane/pkg/request"
)

// LegacyIssuer is the issuer of tokens that are kept in secrets.
const LegacyIssuer = "kubernetes/serviceaccount"

// boundClaims are the private claims of tokens that were requested.
type boundClaims struct {
	Kubernetes kubernetesClaim `json:"kubernetes.io"`
}

type kubernetesClaim struct {
	ClusterName    logicalcluster.Name `json:"clusterName,omitempty"`
	Namespace      string              `json:"namespace,omitempty"`
	ServiceAccount reference           `json:"serviceaccount"`
	Secret         *reference          `json:"secret,omitempty"`
	// Pod and Node bind to objects that do not exist here.
	Pod  *reference `json:"pod,omitempty"`
	Node *reference `json:"node,omitempty"`
}

type reference struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// legacyClaims are the private claims of tokens that are kept in secrets.
type legacyClaims struct {
	ClusterName        logicalcluster.Name `json:"kubernetes.io/serviceaccount/clusterName"`
	Namespace          string              `json:"kubernetes.io/serviceaccount/namespace"`
	SecretName         string              `json:"kubernetes.io/serviceaccount/secret.name"`
	ServiceAccountName string              `json:"kubernetes.io/serviceaccount/service-account.name"`
	ServiceAccountUID  string              `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// anyClaims are those by which the kind of a token is told, before anything of
// it is believed.
type anyClaims struct {
	Issuer     string `json:"iss"`
	Kubernetes struct {
		ClusterName logicalcluster.Name `json:"clusterName"`
	} `json:"kubernetes.io"`
	LegacyClusterName logicalcluster.Name `json:"kubernetes.io/serviceaccount/clusterName"`
}

// maxTokenSize bounds what is parsed; tokens of service accounts are small.
const maxTokenSize = 16 << 10

var errTooLong = errors.New("the token is too long")

// unverified returns the claims of a token without believing them.
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

// ClaimedCluster returns the logical cluster that a token says its account is
// in. It is not verified: use it only to find out where to ask.
func ClaimedCluster(token string) (logicalcluster.Name, bool) {
	claims, _, err := unverified(token)
	if err != nil {
		return "", false
	}
	return claims.cluster()
}

// cluster returns the one logical cluster that a token claims. The two kinds of
// tokens claim it in different places; a token that claims one logical cluster
// in one place and another one in the other is of none.
func (c *anyClaims) cluster() (logicalcluster.Name, bool) {
	name := c.Kubernetes.ClusterName
	if name == "" {
		name = c.LegacyClusterName
	}
	several := c.LegacyClusterName != "" && c.LegacyClusterName != name
	return name, !several && request.ValidClusterName(name)
}
