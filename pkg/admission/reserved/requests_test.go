package reserved

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestSigningRequests(t *testing.T) {
	const clients, kubelets, others = "kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "example.com/clients"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	for what, tc := range map[string]struct {
		signer, name string
		groups       []string
		as           user.Info
		denied       string
	}{
		"user":                         {signer: clients, name: "jane", groups: []string{"team"}},
		"node":                         {signer: kubelets, name: "system:node:n", groups: []string{"system:nodes"}},
		"system user, another signer":  {signer: others, name: "system:apiserver", groups: []string{user.SystemPrivilegedGroup}},
		"masters":                      {signer: clients, name: "jane", groups: []string{"team", user.SystemPrivilegedGroup}, denied: `"system:masters"`},
		"masters, signer of kubelets":  {signer: kubelets, name: "system:node:n", groups: []string{user.SystemPrivilegedGroup}, denied: `"system:masters"`},
		"masters, by an administrator": {signer: clients, name: "jane", groups: []string{user.SystemPrivilegedGroup}, as: admin, denied: `"system:masters"`},
		"masters, by the system":       {signer: clients, name: "jane", groups: []string{user.SystemPrivilegedGroup}, as: machine},
		"administrators":               {signer: clients, name: "jane", groups: []string{request.GroupAdmin}, denied: request.GroupAdmin},
		"group of the system":          {signer: clients, name: "jane", groups: []string{request.GroupLogicalClusterAdmin}, denied: request.GroupLogicalClusterAdmin},
		"readers of cache servers":     {signer: clients, name: "jane", groups: []string{request.GroupCacheReaders}, denied: request.GroupCacheReaders},
		"group of a binding":           {signer: clients, name: "jane", groups: []string{"apis.kcp.io:binding:root:x"}, denied: "apis.kcp.io:binding:root:x"},
		"group of service accounts":    {signer: clients, name: "jane", groups: []string{"system:serviceaccounts:default"}, denied: "system:serviceaccounts:default"},
		"users of a logical cluster":   {signer: clients, name: "jane", groups: []string{"system:cluster:root"}, denied: "system:cluster:root"},
		"API server":                   {signer: clients, name: "system:apiserver", denied: "system:apiserver"},
		"service account":              {signer: clients, name: "system:serviceaccount:default:default", denied: "system:serviceaccount:default:default"},
	} {
		content, err := certutil.MakeCSR(key, &pkix.Name{CommonName: tc.name, Organization: tc.groups}, nil, nil)
		require.NoError(t, err)
		spec := certificatesv1.CertificateSigningRequestSpec{SignerName: tc.signer, Request: content}
		t.Run(what, func(t *testing.T) {
			csr := &certificatesv1.CertificateSigningRequest{Spec: spec}
			a := attributes(signingRequests, "", csr, nil, cmp.Or[user.Info](tc.as, tenant))
			verdict(t, NewReserved().Validate(request.WithClusterName(t.Context(), "here"), a, nil), tc.denied)
		})
	}
	for _, broken := range []string{"", "no PEM", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"} {
		csr := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: clients, Request: []byte(broken)}}
		require.NoError(t, NewReserved().Validate(t.Context(), attributes(signingRequests, "", csr, nil, tenant), nil), "invalid requests are rejected by validation, and must be ignored by this plugin")
	}
}
