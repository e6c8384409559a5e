package certificates

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// admitApproval lets those change conditions who may approve for the signer.
func (c Config) admitApproval(ctx context.Context, request, old *csr) error {
	return c.admit(ctx, "approve", request, old)
}

// admitSigning lets those write a certificate, or that there will be none, who
// may sign as the signer.
func (c Config) admitSigning(ctx context.Context, request, old *csr) error {
	if string(request.Status.Certificate) == string(old.Status.Certificate) &&
		equality.Semantic.DeepEqual(request.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	return c.admit(ctx, "sign", request, old)
}

func (c Config) admit(ctx context.Context, verb string, request, old *csr) error {
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user present on request")
	}
	signer := old.Spec.SignerName
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, Name: name,
			APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("asking who may %s for %s: %w", verb, signer, err))
		}
		if decision == authorizer.DecisionAllow {
			return nil
		}
	}
	return apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), request.Name,
		fmt.Errorf("user not permitted to %s requests with signerName %q", verb, signer))
}
