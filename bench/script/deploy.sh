#!/bin/sh
# What people write instead of fabrique: run by a webhook server for each push, it builds the image from git,
# pushes it, and writes its digest into the deployment repository. For comparison only: it loses webhooks,
# forgets a failed push, deploys whichever of two pushes ends last, and keeps a token in a URL.
#
# usage: deploy.sh REVISION; SOURCE, APPS, APP, IMAGE, BUILDCTL, BUILDKIT and WORK come from the environment.
set -eu
revision=$1
work=$(mktemp -d "$WORK/deploy.XXXXXX")
trap 'rm -rf "$work"' EXIT

"$BUILDCTL" --addr "$BUILDKIT" build \
    --frontend dockerfile.v0 \
    --opt "context=$SOURCE#$revision" \
    --output "type=image,name=$IMAGE:$(printf %.12s "$revision"),push=true" \
    --metadata-file "$work/build.json" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
digest=$(sed -n 's/.*"containerimage.digest": "\(sha256:[0-9a-f]*\)".*/\1/p' "$work/build.json")
test -n "$digest"

git clone --quiet --depth 1 "$APPS" "$work/apps"
cd "$work/apps"
sed -i "s/digest: .*/digest: $digest/" "apps/$APP/prod/kustomization.yaml"
git -c user.name=deploy -c user.email=deploy@localhost commit --quiet --all --message "Deploy $APP $revision"
git push --quiet origin HEAD
