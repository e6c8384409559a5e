module example.com/m/tools

go 1.26

require k8s.io/kubectl v0.36.0

replace example.com/m => ../
