package dev

import (
	"fmt"
	"net"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
)

// certificates are the authorities and certificates of a cluster, in files below .kcp.
type certificates struct {
	clientCA, servingCA, requestHeaderCA *pki.Authority

	serving      *pki.Pair // serving certificate of all components
	kcpAdmin     *pki.Pair // administrator, through the front-proxy
	shardAdmin   *pki.Pair // administrator, directly at a shard or the cache server
	proxyIndex   *pki.Pair // front-proxy at shards, for its index
	proxyForward *pki.Pair // front-proxy at shards, for forwarded requests

	// shardClients are the client certificates of shards for other shards and the cache server.
	shardClients []*pki.Pair

	// serviceAccountKey is the file of the key that signs service account tokens on all shards.
	serviceAccountKey string

	made  int
	notes []string
}

// ensureCertificates creates or loads all certificates.
func ensureCertificates(files layout, shards int, now func() time.Time) (*certificates, error) {
	store := pki.NewStore(files.shared(""), now)
	c := &certificates{shardClients: make([]*pki.Pair, shards)}
	for _, ca := range []struct {
		name   string
		ensure func(name string) (*pki.Authority, error)
		result **pki.Authority
	}{
		// kcp's test helpers use it to sign client certificates with SHA256-RSA.
		{"client-ca", store.RSAAuthority, &c.clientCA},
		{"serving-ca", store.Authority, &c.servingCA},
		{"requestheader-ca", store.Authority, &c.requestHeaderCA},
	} {
		authority, err := ca.ensure(ca.name)
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		*ca.result = authority
	}
	type certificate struct {
		name   string
		ca     *pki.Authority
		spec   pki.Spec
		result **pki.Pair
	}
	all := []certificate{
		{"apiserver", c.servingCA, servingSpec(), &c.serving},
		{"kcp-admin", c.clientCA, pki.Client("kcp-admin", request.GroupAdmin), &c.kcpAdmin},
		{"shard-admin", c.clientCA, pki.Client("shard-admin", user.SystemPrivilegedGroup), &c.shardAdmin},
		{"front-proxy-client", c.clientCA, pki.Client("front-proxy-client", user.SystemPrivilegedGroup), &c.proxyIndex},
		{"front-proxy-requestheader", c.requestHeaderCA, pki.Client("front-proxy"), &c.proxyForward},
	}
	for n := range shards {
		spec := pki.Client(request.ShardUserPrefix+shardName(n), request.GroupShards)
		all = append(all, certificate{shardClientName(n), c.clientCA, spec, &c.shardClients[n]})
	}
	for _, cert := range all {
		pair, err := store.Certificate(cert.name, cert.ca, cert.spec)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		*cert.result = pair
	}
	key, err := store.Key("service-account")
	if err != nil {
		return nil, fmt.Errorf("key of service accounts: %w", err)
	}
	c.serviceAccountKey = key
	c.made, c.notes = store.Made(), store.Notes()
	return c, nil
}

// shardClientName is the name of a shard's certificate, and of its user in kubeconfigs.
func shardClientName(n int) string { return "shard-client-" + shardName(n) }

func servingSpec() pki.Spec {
	return pki.Spec{
		CommonName: "localhost",
		DNSNames:   []string{"localhost"},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
}
