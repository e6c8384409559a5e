package reserved

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	// clientSigners starts the names of the signers whose certificates clients of
	// this API would have.
	clientSigners = "kubernetes.io/kube-apiserver-client"
	// nodes starts the names of users that are reserved, but of which the installation has none.
	nodes = "system:node:"
)

// systemGroups start the names of groups by which servers decide.
var systemGroups = []string{
	user.SystemPrivilegedGroup, request.GroupPrefix, request.GroupBindingPrefix, serviceaccount.AllServiceAccountsGroup, identity.ClusterGroupPrefix,
}

// checkSigningRequest denies a request for a client certificate in a name that the
// system trusts. Nothing here signs; whoever has a signer may believe approvals,
// which a tenant gives itself.
func checkSigningRequest(a admission.Attributes) error {
	asked, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || a.GetOperation() != admission.Create || a.GetSubresource() != "" || !strings.HasPrefix(asked.Spec.SignerName, clientSigners) {
		return nil
	}
	block, _ := pem.Decode(asked.Spec.Request)
	if block == nil {
		return nil // which is no request, and invalid
	}
	content, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	if name := content.Subject.CommonName; strings.HasPrefix(name, request.ReservedPrefix) && !strings.HasPrefix(name, nodes) {
		return admission.NewForbidden(a, fmt.Errorf("the signer %s signs for no user %q, whom only the installation names: ask for another common name", asked.Spec.SignerName, name))
	}
	for _, group := range content.Subject.Organization {
		for _, prefix := range systemGroups {
			if strings.HasPrefix(group, prefix) {
				return admission.NewForbidden(a, fmt.Errorf("the signer %s signs for no member of %q, by which servers decide: ask for another organization", asked.Spec.SignerName, group))
			}
		}
	}
	return nil
}
