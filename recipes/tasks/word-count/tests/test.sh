#!/bin/bash
# Each call has its own limit: a test.sh that runs out of time gives no score at all.
mkdir -p /logs/verifier
cd /app
passed=0
[ "$(timeout 2 python3 count.py words.txt)" = 5 ] && passed=$((passed + 1))
[ "$(timeout 2 python3 count.py /tests/more.txt)" = 7 ] && passed=$((passed + 1))
case $passed in
  2) echo 1 > /logs/verifier/reward.txt ;;
  1) echo 0.5 > /logs/verifier/reward.txt ;;
  *) echo 0 > /logs/verifier/reward.txt ;;
esac
